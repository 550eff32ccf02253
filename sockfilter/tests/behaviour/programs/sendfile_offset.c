/* sendfile from an offset leaves the file's position alone. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int f = MUST(memfd_create("file", 0));
    char b[32] = {0};
    MUST(write(f, "0123456789", 10));
    off_t at = 3;
    TRY(sendfile(e.client, f, &at, 4));
    say("offset %ld, position %ld", (long)at, (long)lseek(f, 0, SEEK_CUR));
    TRY(sendfile64(e.client, f, &at, 100));
    say("offset %ld", (long)at);
    TRY(sendfile(e.client, f, &at, 100));
    arrived(e.server, 7);
    TRY(recv(e.server, b, 32, 0));
    say("%s", b);
    at = -1;
    TRY(sendfile(e.client, f, &at, 1));
    at = 0;
    TRY(sendfile(e.client, f, &at, 0));
}
