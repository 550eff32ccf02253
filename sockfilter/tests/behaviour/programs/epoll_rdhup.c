/* EPOLLRDHUP and EPOLLHUP. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLRDHUP}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(q, got, 4, 0));
    shutdown(e.client, SHUT_WR);
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
    v.events = EPOLLIN;
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.server, &v));
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
    v.events = 0;
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
    shutdown(e.server, SHUT_WR);
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
}
