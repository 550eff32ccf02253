/* SO_SNDTIMEO ends send with what went, or EAGAIN. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct timeval t = {0, 60000};
    TRY(setsockopt(e.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    char *much = calloc(1, 64 << 20);
    double since = seconds();
    long n = write(e.client, much, 64 << 20);
    say("%d, %d", n > 100000 && n < 64 << 20, seconds() - since >= 0.059);
    fill(e.client);
    long k = 0;
    while ((k = write(e.client, much, 65536)) > 0) {}
    say("%s", strerrorname_np(errno));
}
