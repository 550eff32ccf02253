/* SO_LINGER with a time: close waits until what was sent has arrived, or the time is over. */
// differs: after its time: right | after its time: too short | close never waits: what was sent is delivered all the same, even when the program ends
#include "behaviour.h"

static struct ends e;
static void *drains(void *count) {
    await_thread_asleep();
    drain(e.server, (long)count);
    return NULL;
}
int main(void) {
    struct linger l = {1, 5};
    char b;
    double since;
    /* Nothing is under way. */
    e = ends();
    MUST(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    since = seconds();
    TRY(close(e.client));
    say("at once: %s", took(since, 0));
    TRY(recv(e.server, &b, 1, 0));
    close(e.server);
    /* The other end reads later. */
    e = ends();
    MUST(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    long sent = fill(e.client);
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, drains, (void *)sent);
    since = seconds();
    TRY(close(e.client));
    pthread_join(t, NULL);
    TRY(recv(e.server, &b, 1, 0));
    close(e.server);
    /* The other end never reads: the time is over. */
    l.l_linger = 1;
    e = ends();
    MUST(setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    sent = fill(e.client);
    since = seconds();
    TRY(close(e.client));
    say("after its time: %s", took(since, 1));
    drain(e.server, sent);
    TRY(recv(e.server, &b, 1, 0));
}
