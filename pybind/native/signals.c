//go:build sternway_ext

/*
 * Signal dispositions and masks across the start of the Go runtime.
 *
 * A Go runtime in a shared library installs handlers of SIGSEGV, SIGBUS, SIGFPE, SIGPIPE and SIGURG
 * when the library is loaded, and its threads take signals that are sent to the process. In a
 * Python process these belong to Python. So a constructor that runs before the one of the runtime
 * saves the dispositions and blocks all signals, which the threads of the runtime inherit, and the
 * initialization of the module restores both. The runtime keeps one signal: SIGSEGV of a nil
 * pointer in this library, which becomes a Go panic and then an error. Its threads unblock SIGCHLD,
 * SIGPROF, SIGRTMIN and the signals of faults all the same.
 *
 * SA_ONSTACK, which the runtime adds to handlers of others, stays: they may interrupt a goroutine,
 * whose stack is small. SIGURG is the signal by which the runtime preempts goroutines; the library
 * is linked with asyncpreemptoff=1, so that it sends none.
 */
#define _GNU_SOURCE
#include "signals.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

static struct sigaction before[NSIG]; /* by number; of SIGSEGV for as long as the process lives */
static struct sigaction of_go;        /* of SIGSEGV */
static sigset_t mask;                 /* of the thread that loads the library */
static uintptr_t begin, end;          /* of the library's code; 0: not yet restored */

/* Priority 101 is the first that is not reserved; the constructor of the Go runtime has none. */
__attribute__((constructor(101))) static void save(void)
{
    for (int number = 1; number < NSIG; number++)
        sigaction(number, NULL, &before[number]);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
}

static uintptr_t program_counter(const ucontext_t *context)
{
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return context->uc_mcontext.pc;
#else
#error "the program counter of this processor"
#endif
}

/* Whether Go makes a panic of a fault: an access to the first page by code of this library. */
static int is_nil_pointer(const siginfo_t *info, const void *context)
{
    enum { PAGE_BYTES = 4096 };
    uintptr_t at = program_counter(context);
    return info->si_code > 0 && (uintptr_t)info->si_addr < PAGE_BYTES && begin <= at && at < end;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const struct sigaction *other = &before[number];
    if (is_nil_pointer(info, context)) {
        of_go.sa_sigaction(number, info, context);
    } else if (other->sa_flags & SA_SIGINFO) {
        other->sa_sigaction(number, info, context);
    } else if (other->sa_handler == SIG_DFL || (other->sa_handler == SIG_IGN && info->si_code > 0)) {
        signal(number, SIG_DFL); /* a fault happens again on return */
        if (info->si_code <= 0)
            raise(number); /* one that was sent does not; it is pending until then */
    } else if (other->sa_handler != SIG_IGN) {
        other->sa_handler(number);
    }
}

static int find_code(struct dl_phdr_info *info, size_t size, void *address)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t first = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && part->p_flags & PF_X && first <= (uintptr_t)address
            && (uintptr_t)address < first + part->p_memsz) {
            begin = first, end = first + part->p_memsz;
            return 1;
        }
    }
    return 0;
}

void sw_restore_signals(void)
{
    if (end)
        return; /* what Python has set since then is Python's */
    dl_iterate_phdr(find_code, (void *)(uintptr_t)on_fault);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction now, *old = &before[number];
        if (sigaction(number, NULL, &now) || now.sa_handler == old->sa_handler)
            continue;
        struct sigaction back = *old;
        if (number == SIGSEGV) {
            of_go = back = now;
            back.sa_sigaction = on_fault;
        } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
            back.sa_flags |= SA_ONSTACK;
        }
        sigaction(number, &back, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
