/* A blocking write takes everything, however long the reader lets it wait. */
#include "behaviour.h"

static struct ends e;
static void *reads(void *unused) {
    await_thread_asleep();
    drain(e.server, 16 << 20);
    return NULL;
}
int main(void) {
    e = ends();
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, reads, NULL);
    char *much = calloc(1, 16 << 20);
    TRY(write(e.client, much, 16 << 20));
    pthread_join(t, NULL);
}
