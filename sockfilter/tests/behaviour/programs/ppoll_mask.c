/* ppoll lets a blocked signal in while it waits, and only then. */
#include "behaviour.h"

static volatile int seen;
static void count(int s) { seen++; }
int main(void) {
    struct ends e = ends();
    sigset_t one, none;
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    sigprocmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    struct pollfd p = {.fd = e.server, .events = POLLIN};
    TRY(poll(&p, 1, 0));
    say("seen %d", seen);
    TRY(ppoll(&p, 1, NULL, &none));
    say("seen %d", seen);
    raise(SIGUSR1);
    struct timespec zero = {0, 0};
    TRY(ppoll(&p, 1, &zero, &none));
    say("seen %d", seen);
}
