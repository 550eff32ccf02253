/* Threads sleep on two sets already when one is put into the other, and then gets its first connection: they wake when
 * there is something to read, and not before. */
#include "behaviour.h"

static int inner, outer;
static long waits(int way) {
    struct epoll_event got[4];
    struct pollfd p = {outer, POLLIN};
    if (way == 0) return epoll_wait(outer, got, 4, -1);
    if (way == 1) return poll(&p, 1, -1);
    if (way == 2) return ppoll(&p, 1, NULL, NULL);
    return epoll_wait(inner, got, 4, -1);
}
static void *sleeps(void *way) {
    this_thread();
    long found = waits((long)way);
    struct pollfd p = {inner, POLLIN};
    return (void *)(found * 10 + poll(&p, 1, 0));
}

int main(void) {
    int s = listener(), p[2];
    struct ends unused = ends_at(s);
    MUST(pipe(p));
    for (long way = 0; way < 8; way++) {
        struct epoll_event v = {.events = EPOLLIN, .data.u32 = 1};
        inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
        MUST(epoll_ctl(inner, EPOLL_CTL_ADD, p[0], &v));
        MUST(epoll_ctl(outer, EPOLL_CTL_ADD, p[0], &v));
        pthread_t t;
        void *found;
        registered_thread = 0;
        pthread_create(&t, NULL, sleeps, (void *)(way % 4));
        await_thread_asleep();
        TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
        await_thread_asleep();
        struct ends e = ends_at(s);
        TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
        await_thread_asleep();
        if (way < 4) send(e.client, "x", 1, 0);
        else write(p[1], "x", 1);
        pthread_join(t, &found);
        say("%ld %ld", way, (long)found);
        char b;
        if (way >= 4) read(p[0], &b, 1);
        close(inner), close(outer), close(e.client), close(e.server);
    }
}
