/* A level-triggered member is reported as long as it is ready. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int q = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event v = {.events = EPOLLIN, .data.u64 = 0x1234567890}, got[4];
    TRY(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(q, got, 4, 0));
    send(e.client, "ab", 2, 0);
    char b;
    for (int i = 0; i < 3; i++) {
        TRY(epoll_wait(q, got, 4, i < 2 ? -1 : 0));
        if (i < 2) say("%x %llx", got[0].events, (unsigned long long)got[0].data.u64);
        read(e.server, &b, 1);
        if (i == 0) arrived(e.server, 1);
        if (i == 1) break;
    }
    TRY(epoll_wait(q, got, 4, 0));
    TRY(epoll_ctl(q, EPOLL_CTL_DEL, e.server, NULL));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(q, got, 4, 0));
}
