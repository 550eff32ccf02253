/* With room for one event and no time, a wait reports an event whenever a member is ready: what is fair to other
 * members never costs the caller an event. */
#include "behaviour.h"

enum { ROUNDS = 1000 };

/* How often each of the first members was reported, and how often none. */
static void count(const char *what, int q, int room) {
    int none = 0, strange = 0, turns[3] = {0};
    struct epoll_event got[8];
    for (int i = 0; i < ROUNDS; i++) {
        int n = epoll_wait(q, got, room, 0);
        none += n == 0;
        strange += n < 0 || n > room;
        while (n-- > 0) turns[got[n].data.u32]++;
    }
    say("%s, room %d: none %d, strange %d; each had its turn %d%d%d", what, room, none, strange,
        turns[0] >= ROUNDS / 10, turns[1] >= ROUNDS / 10, turns[2] >= ROUNDS / 10);
}

static void add(int q, int fd, int events, int id) {
    struct epoll_event v = {.events = events, .data.u32 = id};
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, fd, &v));
}

/* Every event of a one-shot or edge-triggered member is reported once, by one of the next calls. */
static void once(const char *what, struct ends *e, int events) {
    int q = MUST(epoll_create1(0)), p[2], seen[3] = {0}, empty = 0;
    MUST(pipe(p));
    write(p[1], "x", 1);
    for (int i = 0; i < 2; i++) add(q, e[i].server, events, i);
    add(q, p[0], events, 2);
    for (int i = 0; i < 9; i++) {
        struct epoll_event got;
        int n = MUST(epoll_wait(q, &got, 1, 0));
        if (n) seen[got.data.u32]++, empty += i >= 3;
        else empty += i < 3;
    }
    say("%s: %d %d %d, out of turn %d", what, seen[0], seen[1], seen[2], empty);
    close(q), close(p[0]), close(p[1]);
}

int main(void) {
    struct ends e[2] = {ends(), ends()};
    for (int i = 0; i < 2; i++) send(e[i].client, "x", 1, 0), arrived(e[i].server, 1);
    int q = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0)), p[2];
    add(q, e[0].server, EPOLLIN, 0);
    count("one connection", q, 1);
    count("one connection", q, 2);
    count("one connection", q, 8);
    add(q, e[1].server, EPOLLIN, 1);
    count("two connections", q, 1);
    count("two connections", q, 2);
    count("two connections", q, 3);
    MUST(pipe(p));
    add(q, p[0], EPOLLIN, 2);
    count("a silent pipe too", q, 1);
    write(p[1], "x", 1);
    count("a pipe too", q, 1);
    count("a pipe too", q, 2);
    count("a pipe too", q, 8);
    add(outer, q, EPOLLIN, 0);
    count("a set in a set", outer, 1);
    add(outer, e[0].server, EPOLLIN, 1);
    count("a set and a connection", outer, 1);
    once("one-shot", e, EPOLLIN | EPOLLONESHOT);
    once("edge", e, EPOLLIN | EPOLLET);

    int zero[3] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        struct pollfd one = {.fd = e[0].server, .events = POLLIN}, set = {.fd = q, .events = POLLIN};
        struct timeval now = {0, 0};
        fd_set r;
        FD_ZERO(&r);
        FD_SET(e[0].server, &r);
        zero[0] += poll(&one, 1, 0) != 1;
        zero[1] += poll(&set, 1, 0) != 1;
        zero[2] += select(e[0].server + 1, &r, NULL, NULL, &now) != 1;
    }
    say("poll %d, poll of a set %d, select %d", zero[0], zero[1], zero[2]);
}
