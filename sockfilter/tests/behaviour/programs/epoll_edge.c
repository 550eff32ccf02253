/* An edge-triggered member is reported once for each arrival. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create(1));
    struct epoll_event v = {.events = EPOLLIN | EPOLLET}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    send(e.client, "ab", 2, 0);
    TRY(epoll_wait(q, got, 4, -1));
    say("%x", got[0].events);
    TRY(epoll_wait(q, got, 4, 0));
    send(e.client, "c", 1, 0);
    arrived(e.server, 3);
    TRY(epoll_wait(q, got, 4, -1));
    TRY(epoll_wait(q, got, 4, 0));
    char b[8];
    TRY(read(e.server, b, 1));
    TRY(epoll_wait(q, got, 4, 0));
    shutdown(e.client, SHUT_WR);
    TRY(epoll_wait(q, got, 4, -1));
    TRY(epoll_wait(q, got, 4, 0));
    TRY(read(e.server, b, 8));
    TRY(read(e.server, b, 8));
    TRY(epoll_wait(q, got, 4, 0));
}
