/*
 * The first entry of a thread into Go.
 *
 * The Go runtime binds a structure of its own to the thread then, until the thread ends, and
 * unblocks the signals of faults, SIGPROF and SIGCHLD for as long. The mask is the thread's own, so
 * it is put back.
 */
#define _GNU_SOURCE
#include "pytensor.h"

#include <pthread.h>
#include <signal.h>

static __thread char attached;

void sw_attach_thread(void)
{
    if (attached)
        return;
    attached = 1;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    sw_go_attach();
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
