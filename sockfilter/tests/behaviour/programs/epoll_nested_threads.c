/* Threads that wait on the inner and on the outer set: everything that arrives is read by one of them. */
#include "behaviour.h"

enum { N = 3, ROUNDS = 60 };
static int inner, outer;
static struct ends e[N];
static int third;
static volatile int over;

static void serve(void) {
    struct epoll_event got[N];
    int n = epoll_wait(inner, got, N, 0);
    for (int i = 0; i < n; i++) {
        char b[8];
        long len = recv(e[got[i].data.u32].server, b, 8, MSG_DONTWAIT);
        if (len > 0) send(e[got[i].data.u32].server, b, len, 0);
    }
}

static void *waits(void *which) {
    while (!over) {
        struct epoll_event got;
        struct pollfd p = {outer, POLLIN};
        if (which == &inner) {
            if (epoll_wait(inner, &got, 1, -1) == 1 && got.data.u32 == N) break;
        } else if (which == &outer) {
            epoll_wait(outer, &got, 1, -1);
        } else poll(&p, 1, -1);
        serve();
    }
    return NULL;
}

int main(void) {
    pthread_t t[4];
    int end = MUST(eventfd(0, 0));
    inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = N};
    MUST(epoll_ctl(inner, EPOLL_CTL_ADD, end, &v));
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    for (int i = 0; i < N; i++) {
        e[i] = ends();
        v.data.u32 = i;
        MUST(epoll_ctl(inner, EPOLL_CTL_ADD, e[i].server, &v));
    }
    void *ways[] = {&inner, &outer, &outer, &third};
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, waits, ways[i]);
    long echoed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char b[8];
        for (int i = 0; i < N; i++) MUST(send(e[i].client, "12345678", 8, 0));
        for (int i = 0; i < N; i++) echoed += MUST(recv(e[i].client, b, 8, MSG_WAITALL));
    }
    say("%ld", echoed);
    over = 1;
    eventfd_write(end, 1);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}
