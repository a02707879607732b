"""Behind the drop-ins: their autograd functions, their operators of torch, and the choice of who does a call.

- ``scan``, ``lerp``, ``rope``, ``dequantize``, ``fake_quantize``, ``embedding``, ``bag``: the autograd functions.
- ``eager``: the conditions of an ordinary eager call; ``dispatch``: whether a plan or torch does a call.
- ``operators``: backwards as operators of torch; ``tangents``: forward-mode derivatives; ``sharding``: calls of DTensors.
"""
