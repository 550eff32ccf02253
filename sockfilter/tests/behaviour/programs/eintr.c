/* A handler without SA_RESTART interrupts read, accept, poll and epoll_wait with EINTR; eintr_sending has those that send. */
#include "interrupted.h"

int main(void) {
    int s = listener();
    struct ends e = ends_at(s);
    struct sigaction a = {.sa_handler = count};
    sigaction(SIGUSR1, &a, NULL);
    waiter = pthread_self();
    pthread_t t;
    char b[4];
    start(&t);
    TRY(read(e.server, b, 4));
    pthread_join(t, NULL);
    start(&t);
    TRY(accept(s, NULL, NULL));
    pthread_join(t, NULL);
    start(&t);
    struct pollfd p = {e.server, POLLIN};
    TRY(poll(&p, 1, -1));
    pthread_join(t, NULL);
    start(&t);
    int q = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN};
    epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v);
    TRY(epoll_wait(q, &v, 1, -1));
    pthread_join(t, NULL);
    say("seen %d", seen);
}
