/* A thread that reads is cancelled; the socket works on. */
#include "behaviour.h"

static struct ends e;
static volatile int cleaned;
static void clean(void *unused) { cleaned++; }
static void *reads(void *unused) {
    char b;
    pthread_cleanup_push(clean, NULL);
    this_thread();
    read(e.server, &b, 1);
    say("not cancelled");
    pthread_cleanup_pop(0);
    return NULL;
}
int main(void) {
    e = ends();
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        void *result;
        registered_thread = 0;
        pthread_create(&t, NULL, reads, NULL);
        if (i < 3) await_thread_asleep();
        pthread_cancel(t);
        pthread_join(t, &result);
        if (result != PTHREAD_CANCELED) say("not cancelled");
    }
    say("%d", cleaned);
    char b;
    TRY(send(e.client, "x", 1, 0));
    TRY(recv(e.server, &b, 1, 0));
}
