/* close of a descriptor that another thread polls or selects: what it finds in the end is that the number is closed. */
// differs: select 2, the other is set | select EBADF | the kernel reports a number that was closed meanwhile as ready (none at all before Linux 5.18); here it is as one that was closed before
#include "behaviour.h"

static struct ends e, f;
static void *waits(void *way) {
    struct pollfd p[2] = {{e.server, POLLIN}, {f.server, POLLIN}};
    struct timeval time = {10, 0};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(e.server, &r);
    FD_SET(f.server, &r);
    this_thread();
    if ((long)way < 2) {
        long result = poll(p, 2 - (long)way, 3000);
        say("poll %d, events %x", result > 0, p[0].revents);
    } else {
        long result = select(f.server + 1, &r, NULL, NULL, &time);
        if (result == -1) say("select %s", strerrorname_np(errno));
        else say("select %ld, the other is %s", result, FD_ISSET(f.server, &r) ? "set" : "not set");
    }
    return NULL;
}
int main(void) {
    for (long way = 0; way < 3; way++) {
        e = ends();
        f = ends();
        pthread_t t;
        registered_thread = 0;
        pthread_create(&t, NULL, waits, (void *)way);
        await_thread_asleep();
        MUST(close(e.server));
        if (way != 1) send(f.client, "x", 1, 0);
        pthread_join(t, NULL);
        char b;
        TRY(recv(e.client, &b, 1, 0));
        close(e.client), close(f.client), close(f.server);
    }
}
