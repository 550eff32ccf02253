/* EPOLLOUT comes when there is room again. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLOUT | EPOLLET}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.client, &v));
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
    long sent = stuff(e.client);
    while (epoll_wait(q, got, 4, 50) > 0) sent += stuff(e.client);
    TRY(epoll_wait(q, got, 4, 0));
    drain(e.server, sent);
    TRY(epoll_wait(q, got, 4, 5000));
    say("%x", got[0].events);
}
