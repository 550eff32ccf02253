/* One poll over accelerated sockets, a pipe, an eventfd and nothing. */
#include "behaviour.h"

static struct ends e;
static int p[2], v;
static void *wakes(void *which) {
    await_thread_asleep();
    switch ((long)which) {
    case 0: send(e.client, "x", 1, 0); break;
    case 1: write(p[1], "x", 1); break;
    case 2: eventfd_write(v, 1); break;
    }
    return NULL;
}
int main(void) {
    e = ends();
    MUST(pipe(p));
    v = MUST(eventfd(0, 0));
    this_thread();
    struct pollfd set[] = {{e.server, POLLIN}, {-5, POLLIN}, {p[0], POLLIN}, {v, POLLIN}, {p[1], 0}};
    for (long i = 0; i < 3; i++) {
        pthread_t t;
        pthread_create(&t, NULL, wakes, (void *)i);
        TRY(poll(set, 5, -1));
        say("%x %x %x %x %x", set[0].revents, set[1].revents, set[2].revents, set[3].revents, set[4].revents);
        pthread_join(t, NULL);
        char b[1];
        eventfd_t n;
        if (i == 0) read(e.server, b, 1);
        if (i == 1) read(p[0], b, 1);
        if (i == 2) eventfd_read(v, &n);
    }
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    write(p[1], "x", 1);
    TRY(poll(set, 5, -1));
    say("%x %x %x", set[0].revents, set[2].revents, set[3].revents);
}
