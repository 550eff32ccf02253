/* A wait on the outer set wakes for a member of the inner one. */
#include "behaviour.h"

static struct ends e;
int main(void) {
    e = ends();
    int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    this_thread();
    for (int way = 0; way < 3; way++) {
        pthread_t t;
        registered_thread = 0;
        this_thread();
        pthread_create(&t, NULL, sends_later, (void *)(long)e.client);
        struct pollfd p = {outer, POLLIN};
        fd_set r;
        FD_ZERO(&r);
        FD_SET(inner, &r);
        if (way == 0) TRY(epoll_wait(outer, got, 4, -1));
        if (way == 1) TRY(poll(&p, 1, -1));
        if (way == 2) TRY(select(inner + 1, &r, NULL, NULL, NULL));
        pthread_join(t, NULL);
        char b;
        read(e.server, &b, 1);
        epoll_wait(inner, got, 4, 0);
        epoll_wait(outer, got, 4, 0);
    }
}
