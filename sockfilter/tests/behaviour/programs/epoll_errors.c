/* What epoll_ctl and epoll_wait refuse. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0)), f = MUST(memfd_create("file", 0));
    struct epoll_event v = {.events = EPOLLIN}, got[2];
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, e.server, NULL));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, e.client, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, e.client, NULL));
    TRY(epoll_ctl(q, 9, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.client, NULL));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, q, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, f, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, 999, &v));
    TRY(epoll_ctl(999, EPOLL_CTL_ADD, e.client, &v));
    TRY(epoll_ctl(e.client, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(f, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(q, got, 0, 0));
    TRY(epoll_wait(q, got, -1, 0));
    TRY(epoll_wait(e.client, got, 2, 0));
    TRY(epoll_wait(999, got, 2, 0));
}
