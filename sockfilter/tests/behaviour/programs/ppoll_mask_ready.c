/* With a signal pending and data ready, ppoll reports the data. */
#include "behaviour.h"

static volatile int seen;
static void count(int s) { seen++; }
int main(void) {
    struct ends e = ends();
    sigset_t one, none;
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    signal(SIGUSR1, count);
    sigprocmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    struct pollfd p = {.fd = e.server, .events = POLLIN};
    TRY(ppoll(&p, 1, NULL, &none));
    say("%x", p.revents);
}
