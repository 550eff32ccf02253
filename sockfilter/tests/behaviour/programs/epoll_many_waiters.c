/* Threads that wait on one set each get work; none is lost. */
#include "behaviour.h"

enum { N = 4 };
static int q;
static struct ends e[N];
static volatile int reads;
static void *serves(void *unused) {
    for (;;) {
        struct epoll_event got;
        int n = epoll_wait(q, &got, 1, -1);
        if (n != 1) continue;
        char b[8];
        long len = recv(e[got.data.u32].server, b, 8, MSG_DONTWAIT);
        if (len == 0) return NULL;
        if (len > 0) send(e[got.data.u32].server, b, len, 0);
        struct epoll_event v = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = got.data.u32};
        epoll_ctl(q, EPOLL_CTL_MOD, e[got.data.u32].server, &v);
    }
}
int main(void) {
    pthread_t t[N];
    q = MUST(epoll_create1(0));
    for (int i = 0; i < N; i++) {
        e[i] = ends();
        struct epoll_event v = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = i};
        MUST(epoll_ctl(q, EPOLL_CTL_ADD, e[i].server, &v));
        pthread_create(&t[i], NULL, serves, NULL);
    }
    long echoed = 0;
    for (int round = 0; round < 50; round++) {
        char b[8];
        for (int i = 0; i < N; i++) MUST(send(e[i].client, "12345678", 8, 0));
        for (int i = 0; i < N; i++) echoed += MUST(recv(e[i].client, b, 8, MSG_WAITALL));
    }
    say("%ld", echoed);
    for (int i = 0; i < N; i++) shutdown(e[i].client, SHUT_WR);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
}
