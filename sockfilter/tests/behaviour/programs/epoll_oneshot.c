/* A one-shot member is reported once, until EPOLL_CTL_MOD. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN | EPOLLONESHOT}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    send(e.client, "a", 1, 0);
    TRY(epoll_wait(q, got, 4, -1));
    TRY(epoll_wait(q, got, 4, 0));
    send(e.client, "b", 1, 0);
    arrived(e.server, 2);
    TRY(epoll_wait(q, got, 4, 0));
    shutdown(e.client, SHUT_WR);
    ended(e.server);
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
    say("%x", got[0].events);
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, e.server, NULL));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
}
