#ifndef STERNWAY_SIGNALS_H
#define STERNWAY_SIGNALS_H

/* Gives back the signals that the Go runtime of this library took when it was loaded; from the
   second call on, nothing. Called by the thread that loaded it. */
void sw_restore_signals(void);

#endif
