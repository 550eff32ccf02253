/* Sockets, pipes and eventfds in one set, with the same data too. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2], q = MUST(epoll_create1(0)), n = MUST(eventfd(0, EFD_NONBLOCK));
    MUST(pipe(p));
    struct epoll_event v = {.events = EPOLLIN, .data.u64 = 7}, got[8];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, p[0], &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, n, &v));
    write(p[1], "x", 1);
    TRY(epoll_wait(q, got, 8, -1));
    char b[8];
    read(p[0], b, 1);
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(q, got, 8, -1));
    eventfd_write(n, 1);
    write(p[1], "x", 1);
    arrived(e.server, 1);
    int most = 0, total = 0;
    /* All three come, though not necessarily by one call. */
    for (int i = 0; i < 10; i++) {
        int found = epoll_wait(q, got, 8, 0);
        if (found > most) most = found;
        for (int j = 0; j < found; j++) total += got[j].data.u64 == 7;
    }
    say("%d, right data %d", most, total >= 10);
    read(e.server, b, 1);
    read(p[0], b, 1);
    read(n, b, 8);
    TRY(epoll_wait(q, got, 8, 0));
}
