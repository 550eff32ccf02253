/* epoll_pwait lets a blocked signal in while it waits. */
#include "behaviour.h"

static volatile int seen;
static void count(int s) { seen++; }
int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    sigset_t one, none;
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    sigprocmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_pwait(q, got, 4, -1, &none));
    say("seen %d", seen);
    raise(SIGUSR1);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_pwait(q, got, 4, -1, &none));
    say("%x", got[0].events);
}
