/* EPOLLEXCLUSIVE members, and what may not be done with them. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    int q = MUST(epoll_create1(0)), r = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN | EPOLLEXCLUSIVE}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, s, &v));
    TRY(epoll_ctl(r, EPOLL_CTL_ADD, s, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, s, &v));
    struct epoll_event plain = {.events = EPOLLIN};
    TRY(epoll_ctl(q, EPOLL_CTL_MOD, s, &plain));
    struct epoll_event shot = {.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT};
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, s, NULL));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, s, &shot));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, s, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, r, &v));
    int c = dial(s);
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
    TRY(accept(s, NULL, NULL) >= 0);
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_wait(r, got, 4, 0));
}
