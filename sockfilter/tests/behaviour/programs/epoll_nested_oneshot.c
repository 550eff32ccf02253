/* An inner set that is a one-shot member is reported once until EPOLL_CTL_MOD. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    v.events = EPOLLIN | EPOLLONESHOT;
    v.data.u32 = 2;
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    char b[8];
    for (int round = 0; round < 3; round++) {
        TRY(epoll_wait(outer, got, 4, 0));
        send(e.client, "a", 1, 0);
        TRY(epoll_wait(outer, got, 4, -1));
        say("%x %u", got[0].events, got[0].data.u32);
        send(e.client, "b", 1, 0);
        arrived(e.server, 2);
        TRY(epoll_wait(outer, got, 4, 0));
        v.data.u32++;
        TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
        TRY(epoll_wait(outer, got, 4, 0));
        say("%x %u", got[0].events, got[0].data.u32);
        TRY(epoll_wait(outer, got, 4, 0));
        TRY(epoll_wait(inner, got, 4, 0));
        TRY(read(e.server, b, 8));
        TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
    }
    /* The member of the inner one is one, too. */
    struct epoll_event w = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = 7};
    TRY(epoll_ctl(inner, EPOLL_CTL_MOD, e.server, &w));
    v.events = EPOLLIN;
    TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
    send(e.client, "c", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(inner, got, 4, -1));
    say("%x %u", got[0].events, got[0].data.u32);
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_ctl(inner, EPOLL_CTL_MOD, e.server, &w));
    TRY(epoll_wait(outer, got, 4, 0));
    v.events = EPOLLIN | EPOLLEXCLUSIVE;
    TRY(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &v));
    TRY(epoll_wait(outer, got, 4, 0));
}
