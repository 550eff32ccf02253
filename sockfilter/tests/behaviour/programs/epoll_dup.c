/* A duplicate is a member of its own; the connection stays a member until all its descriptors are closed. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0)), d = MUST(dup(e.server));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    v.data.u32 = 2;
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, d, &v));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(q, got, 4, -1));
    TRY(close(d));
    TRY(epoll_wait(q, got, 4, -1));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, d, NULL));
    TRY(close(e.server));
    TRY(epoll_wait(q, got, 4, 0));
}
