/* An epoll set in another, and either in poll. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    v.data.u32 = 2;
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, outer, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    struct pollfd p[] = {{inner, POLLIN}, {outer, POLLIN}};
    TRY(poll(p, 2, 0));
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    say("%x %u", got[0].events, got[0].data.u32);
    TRY(poll(p, 2, -1));
    say("%x %x", p[0].revents, p[1].revents);
    TRY(epoll_wait(inner, got, 4, -1));
    say("%x %u", got[0].events, got[0].data.u32);
    char b;
    TRY(read(e.server, &b, 1));
    TRY(epoll_wait(inner, got, 4, 0));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(poll(p, 2, 0));
}
