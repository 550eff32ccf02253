/* A listener in an inner set; and all members of the inner set get their turn where there is room for one. */
#include "behaviour.h"

int main(void) {
    int s = listener(), inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0)), p[2], turns[6] = {0};
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 9}, got[4];
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, s, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    for (int i = 0; i < 4; i++) {
        int c = dial(s);
        TRY(epoll_wait(outer, got, 4, -1));
        TRY(epoll_wait(inner, got, 4, 0));
        int a = MUST(accept(s, NULL, NULL));
        TRY(epoll_wait(outer, got, 4, 0));
        v.data.u32 = i;
        MUST(epoll_ctl(inner, EPOLL_CTL_ADD, a, &v));
        TRY(epoll_wait(outer, got, 4, 0));
        send(c, "x", 1, 0);
        arrived(a, 1);
        TRY(epoll_wait(outer, got, 4, 0));
        epoll_ctl(inner, EPOLL_CTL_DEL, a, NULL);
        TRY(epoll_wait(outer, got, 4, 0));
        MUST(epoll_ctl(inner, EPOLL_CTL_ADD, a, &v));
        if (i < 3) {
            v.events = 0;
            MUST(epoll_ctl(inner, EPOLL_CTL_MOD, a, &v));
            TRY(epoll_wait(outer, got, 4, 0));
            v.events = EPOLLIN;
        }
        turns[i] = a;
    }
    for (int i = 0; i < 4; i++) {
        v.data.u32 = i;
        MUST(epoll_ctl(inner, EPOLL_CTL_MOD, turns[i], &v));
        turns[i] = 0;
    }
    MUST(pipe(p));
    write(p[1], "x", 1);
    v.data.u32 = 4;
    MUST(epoll_ctl(inner, EPOLL_CTL_ADD, p[0], &v));
    for (int i = 0; i < 60; i++)
        if (MUST(epoll_wait(inner, got, 1, -1)) == 1) turns[got[0].data.u32]++;
    for (int i = 0; i < 5; i++) say("%d", turns[i] >= 5);
    TRY(epoll_wait(outer, got, 4, 0));
}
