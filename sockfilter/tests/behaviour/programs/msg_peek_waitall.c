/* MSG_PEEK with MSG_WAITALL waits until all that is asked for can be seen. */
#include "behaviour.h"

static struct ends e;
static void *later(void *unused) {
    await_thread_asleep();
    send(e.client, "cd", 2, 0);
    return NULL;
}
int main(void) {
    e = ends();
    char b[8] = {0};
    send(e.client, "ab", 2, 0);
    arrived(e.server, 2);
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, later, NULL);
    TRY(recv(e.server, b, 4, MSG_PEEK | MSG_WAITALL));
    say("%s", b);
    pthread_join(t, NULL);
    TRY(recv(e.server, b, 8, 0));
}
