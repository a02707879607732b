"""The models of transformers that are understood: which rotary class each ``model_type`` has, as plain values.

A row says how the class differs from Llama's. A ``model_type`` that is in neither table is refused: its class is unknown.
Configurations without a ``model_type`` are found by the name of their class.
"""

from __future__ import annotations

from dataclasses import dataclass

SCALED = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


@dataclass(frozen=True)
class Model:
    """How a rotary class reads its configuration, and the layout of its tables."""

    layout: str = "halves"
    """A row of :data:`columns.LAYOUTS`."""
    partial: float | None = None
    """``partial_rotary_factor`` of rope type "default" where none is given; None: the class rotates the whole head."""
    sections: tuple[int, ...] | None = None
    """``mrope_section`` where none is given; (): it must be given; None: the class has no sections."""
    rope_types: tuple[str, ...] = SCALED
    """Rope types that the class takes; "default" stands for the only one where "default" is not among them."""
    variants: tuple[tuple[str, str], ...] = ()
    """(rope type, row of :data:`frequencies.VARIANTS` that the class means by it)."""
    head: tuple[str, ...] = ("hidden_size", "num_attention_heads")
    """Settings whose quotient is the width of a head, where ``head_dim`` is not given."""
    own_base: bool = False
    """The base is ``rope_theta`` of the configuration, which has no ``rope_parameters``."""


def _axial(layout: str = "axial", variant: str = "", head: tuple[str, ...] = Model.head) -> Model:
    return Model(layout, rope_types=("axial",), variants=(("axial", variant),) if variant else (), head=head)


_HUNYUAN = (("dynamic", "dynamic, HunYuan"),)
_MEMORY = ("memory_attention_hidden_size", "memory_attention_downsample_rate", "memory_attention_num_attention_heads")

_ROWS: tuple[tuple[Model, str], ...] = (
    (
        Model(),
        """afmoe apertus apertus1p5_text arcee aria_text axk1 axk2 bailing_hybrid beam bitnet chameleon csm
        csm_depth_decoder_model cwm dbrx deepseek_ocr2_encoder deepseek_ocr2_text
        deepseek_v3 deepseek_v32 dia_decoder dia_encoder diffllama doge dory dots1
        embedding_gemma2_text emu3_text_model ernie4_5 ernie4_5_moe esmc eurobert evolla exaone exaone4 exaone_moe falcon
        falcon_h1 flex_olmo flint gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm_moe_dsa
        gradium_phonon_tts granite granite4_vision_text granite_docling_text granite_swa granitemoe granitemoe_swa
        granitemoehybrid granitemoeshared gte helium higgs_audio_v2 hrm_text hy_v3 hy_v4 hyperclovax idefics internlm3
        iquestcoder jais2 jetmoe jina_embeddings_v3 kolibri1 kyutai_speech_to_text lara_mini lasr_encoder lfm2 lfm2_moe lfm3
        llama longcat_flash mimi mimi_decoder mimi_encoder minicpm3 minimax ministral ministral3 mistral mistral4 mixtral
        mllama_text_model modernbert modernbert-decoder molmo2_text moshi muse_glimmer_assistant muse_glimmer_text
        muse_spark_text nanochat neucodec nomic_bert olmo olmo2 olmo3 olmo_hybrid olmoe pe_audio_encoder
        pe_audio_video_encoder pe_video_encoder pocket_tts pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder
        pocket_tts_audio_tokenizer_encoder qwen2 qwen2_5_omni_dit qwen2_moe qwen3 qwen3_moe
        qwen3_omni_moe_talker_code_predictor Qwen3OmniMoeCode2WavConfig sarvam_mla seed_oss smollm3 starcoder2
        t5_gemma_module t5gemma2_decoder t5gemma2_text timesfm2_5 ultrabert unlimited_ocr_text vaultgemma
        voxtral_realtime_encoder voxtral_realtime_text xcodec2 youtu zamba2""",
    ),
    (
        Model(partial=1.0),
        """bamba diffusion_gemma_text dots3_note_audio_encoder dots3_note_text glm glm4 glm4_moe glm4_moe_lite glmasr_encoder
        gpt_neox gpt_neox_japanese laguna mellum minimax_m2 minimax_m3_vl_text moonshine moonshine_streaming nemotron
        nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio persimmon phi phi3
        phi4_multimodal qwen3_next sarvam_moe solar_open stablelm step3p5 zaya""",
    ),
    (Model(partial=0.334), "mimo_v2_flash"),
    (Model(partial=1.0, rope_types=("default",)), "recurrent_gemma"),
    (Model(rope_types=("default",), own_base=True), "esm SaProtConfig"),
    (
        Model("neighbours"),
        "blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher cohere cohere2 cohere2_moe",
    ),
    (Model("pairs"), "gpt_oss openai_privacy_filter"),
    (Model("pairs", partial=1.0), "deepseek_v4"),
    (Model(variants=_HUNYUAN), "hunyuan_v1_dense hunyuan_v1_moe"),
    (Model(rope_types=("default", "longrope"), variants=(("longrope", "longrope, Phi-3.5-MoE"),)), "phimoe"),
    # multimodal
    (
        Model("sections", sections=(16, 24, 24)),
        "paddleocr_vl_text qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text",
    ),
    (Model("sections", partial=1.0, sections=(8, 12, 12)), "glm4v_moe_text glm_image_text"),
    (Model("sections, neighbours", partial=1.0, sections=(8, 12, 12)), "glm4v_text glm_ocr_text"),
    (
        Model("interleaved sections", sections=(24, 20, 20)),
        """cohere_compass_text cosmos3_edge_text hy_v4_vl_text qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_vl_moe_text
        qwen3_vl_text""",
    ),
    (Model("interleaved sections", partial=1.0, sections=(11, 11, 10)), "qwen3_5_moe_text qwen3_5_text qwen4_exp_text"),
    (Model("time last", sections=(22, 22, 20), rope_types=("default",)), "ernie4_5_vl_moe_text"),
    (Model("sections of columns", sections=(), variants=_HUNYUAN), "hunyuan_vl_text"),
    (Model("alternating", partial=1.0), "neomme"),
    # vision encoders
    (
        _axial(),
        """cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision glm4v_moe_vision glm4v_vision
        glm5_next_vision glm_ocr_vision lfm3_vl_vision mlcd_vision_model muse_glimmer_vision muse_spark_vision
        paddleocr_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen3_5_moe_vision qwen3_5_vision
        qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision video_llama_3_vision""",
    ),
    (_axial(head=("embed_dim", "num_attention_heads")), "qwen2_vl_vision"),
    (_axial("axial, column first"), "step3p5_vision"),
    (_axial("axial, column first, neighbours"), "inkling2_vision"),
    (_axial("axial, column first, alternating"), "kimi_k25_vision"),
    (_axial("axial, halves of each axis"), "gemma4_vision"),
    (_axial("axial, neighbours"), "sam3_vit_model"),
    (_axial("axial, neighbours", head=_MEMORY), "edgetam_video sam2_video sam3_tracker_video"),
    (_axial("axial, even and odd", "axial, Pixtral"), "pixtral"),
    (_axial("axial, three axes", "axial, MiniMax M3"), "minimax_m3_vl_vision"),
)

MODELS: dict[str, Model] = {name: model for model, names in _ROWS for name in names.split()}

MAPPING = Model(partial=1.0, sections=(), rope_types=(*SCALED, "axial"))
"""How a plain mapping is read; its sections and its rope type choose the layout."""

_COMPLEX = 'its rotary class gives complex numbers; a mapping of its rope settings gives cos and sin for pairing="interleaved"'
_SEQUENCE = "its rotary class counts positions itself; a mapping of head_dim and rope_theta gives the tables"
_PIXELS = "its rotary class takes pixels and forms the coordinates of patches itself"

REFUSED: dict[str, str] = {
    "codegen": "its rotary class gives (sin, cos); a mapping of rotary_dim gives cos and sin",
    "gptj": "its rotary class gives (sin, cos); a mapping of rotary_dim gives cos and sin",
    "deepseek_v2": _COMPLEX,
    "llama4_text": _COMPLEX,
    "llama4_vision_model": _COMPLEX,
    "clvp_decoder": _SEQUENCE,
    "clvp_encoder": _SEQUENCE,
    "seamless_m4t": _SEQUENCE,
    "wav2vec2-bert": _SEQUENCE,
    "wav2vec2-conformer": _SEQUENCE,
    "dinov3_vit": _PIXELS,
    "efficientloftr": _PIXELS,
    "eomt_dinov3": _PIXELS,
    "sapiens2": _PIXELS,
    "EsmFold2AtomEncoderConfig": "its rotary class takes the coordinates of atoms",
    "mistral_large4_text": "its frequencies are multiplied by learned weights, which a configuration does not hold",
    "musicflamingo": "its rotary class takes timestamps of windows",
}
"""Models that are known and have no tables of positions, with the reason."""
