/* A closed member leaves the set; its number may be used for another. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends(), f = ends();
    int q = MUST(epoll_create1(0)), number = e.server;
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(close(e.server));
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, number, &v));
    TRY(dup2(f.server, number) == number);
    v.data.u32 = 2;
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, number, &v));
    send(f.client, "x", 1, 0);
    TRY(epoll_wait(q, got, 4, -1));
    say("%u", got[0].data.u32);
}
