/* An inner set that is an edge-triggered member is reported once for each arrival, even if events remain in it. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends(), f = ends();
    int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create(1));
    struct epoll_event v = {.events = EPOLLIN | EPOLLET, .data.u32 = 1}, got[4];
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    v.events = EPOLLIN;
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    v.events = EPOLLIN | EPOLLET;
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, f.server, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    send(e.client, "ab", 2, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    say("%x %u", got[0].events, got[0].data.u32);
    arrived(e.server, 2);
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_wait(inner, got, 4, 0));
    TRY(epoll_wait(outer, got, 4, 0));
    send(e.client, "c", 1, 0);
    arrived(e.server, 3);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(outer, got, 4, 0));
    char b[8];
    TRY(read(e.server, b, 1));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(read(e.server, b, 8));
    TRY(epoll_wait(outer, got, 4, 0));
    /* A member at the edge, too. */
    send(f.client, "d", 1, 0);
    arrived(f.server, 1);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(outer, got, 4, 0));
    struct pollfd p = {inner, POLLIN};
    TRY(poll(&p, 1, 0));
    TRY(epoll_wait(inner, got, 4, 0));
    TRY(poll(&p, 1, 0));
    TRY(epoll_wait(inner, got, 4, 0));
    TRY(epoll_wait(outer, got, 4, 0));
    /* After EPOLL_CTL_MOD it is reported again, while it is ready. */
    send(e.client, "e", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(outer, got, 4, -1));
    v.data.u32 = 2;
    TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    say("%x %u", got[0].events, got[0].data.u32);
    TRY(read(e.server, b, 8));
    TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    close(e.client);
    ended(e.server);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(outer, got, 4, 0));
}
