/* Three levels: what is ready in the innermost set makes the others ready; four more may be, and not one more. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q[7];
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    for (int i = 0; i < 7; i++) q[i] = MUST(epoll_create1(0));
    for (int i = 0; i < 6; i++) {
        v.data.u32 = i;
        TRY(epoll_ctl(q[i + 1], EPOLL_CTL_ADD, q[i], &v));
    }
    v.data.u32 = 9;
    TRY(epoll_ctl(q[0], EPOLL_CTL_ADD, q[3], &v));
    TRY(epoll_ctl(q[2], EPOLL_CTL_ADD, q[2], &v));
    TRY(epoll_ctl(q[2], EPOLL_CTL_ADD, q[1], &v));
    TRY(epoll_ctl(q[0], EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(q[2], got, 4, 0));
    for (int round = 0; round < 3; round++) {
        char b;
        send(e.client, "x", 1, 0);
        TRY(epoll_wait(q[2], got, 4, -1));
        say("%x %u", got[0].events, got[0].data.u32);
        TRY(epoll_wait(q[1], got, 4, 0));
        say("%x %u", got[0].events, got[0].data.u32);
        struct pollfd p[] = {{q[0], POLLIN}, {q[1], POLLIN}, {q[2], POLLIN | POLLOUT}, {q[4], POLLIN}};
        TRY(poll(p, 4, 0));
        for (int i = 0; i < 4; i++) say("%x", p[i].revents);
        TRY(epoll_wait(q[0], got, 4, 0));
        say("%x %u", got[0].events, got[0].data.u32);
        TRY(read(e.server, &b, 1));
        for (int i = 0; i < 5; i++) TRY(epoll_wait(q[i], got, 4, 0));
        TRY(poll(p, 4, 0));
    }
}
