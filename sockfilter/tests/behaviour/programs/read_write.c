/* read and write, of nothing too, and the end of the stream. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[16] = {0};
    TRY(write(e.client, "hello", 5));
    TRY(write(e.client, "", 0));
    arrived(e.server, 5);
    TRY(read(e.server, b, 0));
    TRY(read(e.server, b, 3));
    TRY(read(e.server, b + 3, 13));
    say("%s", b);
    TRY(write(e.server, "back", 4));
    TRY(read(e.client, b, 16));
    TRY(close(e.client));
    TRY(read(e.server, b, 16));
    TRY(read(e.server, b, 16));
}
