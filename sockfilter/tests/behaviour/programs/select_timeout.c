/* select waits for its time-out and stores the remaining time. */
#include "behaviour.h"

static struct ends e;
int main(void) {
    e = ends();
    fd_set r;
    FD_ZERO(&r);
    FD_SET(e.server, &r);
    struct timeval time = {0, 60000};
    double t = seconds();
    TRY(select(e.server + 1, &r, NULL, NULL, &time));
    say("%s, left %ld.%06ld", took(t, 0.060), (long)time.tv_sec, (long)time.tv_usec);
    FD_SET(e.server, &r);
    time = (struct timeval){20, 0};
    this_thread();
    pthread_t other;
    pthread_create(&other, NULL, sends_later, (void *)(long)e.client);
    TRY(select(e.server + 1, &r, NULL, NULL, &time));
    say("left %d", time.tv_sec >= 10 && time.tv_sec < 20);
    pthread_join(other, NULL);
    time = (struct timeval){-1, 0};
    TRY(select(e.server + 1, &r, NULL, NULL, &time));
    time = (struct timeval){0, 1500000};
    t = seconds();
    read(e.server, &r, 1);
    FD_ZERO(&r);
    FD_SET(e.server, &r);
    TRY(select(e.server + 1, &r, NULL, NULL, &time));
    say("%s", took(t, 1.5));
}
