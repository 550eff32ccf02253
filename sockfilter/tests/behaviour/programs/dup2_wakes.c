/* dup2 over a descriptor that another thread reads from leaves that read to the connection, which ends with it (Java's preClose). */
#include "behaviour.h"

static struct ends e;
static void *reads(void *unused) {
    char b;
    this_thread();
    long n = read(e.server, &b, 1);
    return (void *)(n == 1 ? 0L : errno);
}
int main(void) {
    e = ends();
    pthread_t t;
    void *error;
    pthread_create(&t, NULL, reads, NULL);
    await_thread_asleep();
    int n = MUST(open("/dev/null", O_RDWR));
    MUST(dup2(n, e.server));
    if (send(e.client, "x", 1, MSG_NOSIGNAL) != 1) say("not sent");
    pthread_join(t, &error);
    if (error) say("read gives %s", strerrorname_np((long)error));
    else say("the other thread reads on");
    char b;
    TRY(read(e.client, &b, 1));
}
