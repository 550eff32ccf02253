/* An edge-triggered member that is ready when it is added or modified is reported once. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = 1}, got[4];
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
    say("%x", got[0].events);
    TRY(epoll_wait(q, got, 4, 0));
    v.data.u32 = 2;
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
    say("%x %u", got[0].events, got[0].data.u32);
    TRY(epoll_wait(q, got, 4, 0));
}
