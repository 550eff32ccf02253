/* One thread sets flags of a connection while another forks: they stay as they were set. */
#include "behaviour.h"

enum { ROUNDS = 200 };
static struct ends e;
static volatile int over;
static volatile long strange, cycles;

static int nonblocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }
static void *acts(void *unused) {
    for (int n = 0; !over; n++) {
        int on = n % 2, fd = e.client;
        if (n % 4 < 2) strange += fcntl(fd, F_SETFL, O_RDWR | (on ? O_NONBLOCK : 0));
        else strange += ioctl(fd, FIONBIO, &on);
        strange += nonblocks(fd) != on;
        if (n % 4 < 2) strange += fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
        else strange += ioctl(fd, on ? FIOCLEX : FIONCLEX);
        strange += fcntl(fd, F_GETFD) != on;
        cycles++;
    }
    return NULL;
}
int main(void) {
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t t;
        e = ends();
        over = 0;
        long before = cycles;
        pthread_create(&t, NULL, acts, NULL);
        while (cycles == before) sched_yield();
        pid_t pid = MUST(fork());
        if (pid == 0) _exit(0);
        MUST(waitpid(pid, NULL, 0));
        over = 1;
        pthread_join(t, NULL);
        close(e.client), close(e.server);
    }
    say("strange %ld", strange);
}
