/* With less room than ready members, all get their turn. */
#include "behaviour.h"

int main(void) {
    int s = listener(), q = MUST(epoll_create1(0)), p[2], turns[6] = {0};
    struct epoll_event got[2];
    for (int i = 0; i < 5; i++) {
        struct ends e = ends_at(s);
        struct epoll_event v = {.events = EPOLLIN, .data.u32 = i};
        MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
        send(e.client, "x", 1, 0);
        arrived(e.server, 1);
    }
    MUST(pipe(p));
    write(p[1], "x", 1);
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 5};
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, p[0], &v));
    for (int i = 0; i < 60; i++) {
        int n = MUST(epoll_wait(q, got, 2, -1));
        while (n-- > 0) turns[got[n].data.u32]++;
    }
    for (int i = 0; i < 6; i++) say("%d", turns[i] >= 5);
}
