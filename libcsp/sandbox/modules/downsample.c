/* Down-samples a payload: of every `n` samples of 16 bits, little-endian, their mean. The parameter is n, from 1 to 64.
 *
 * The first frame of a message of several frames is its topic, which stays as it is; samples are in the others.
 *
 * Messages of up to 8,192 bytes are in the buffer when on_message is called; longer ones are read in pieces, so that the module needs no
 * more memory for a message of a megabyte. The last samples, if fewer than n, make one more.
 */
#include "csp_handler.h"

#define PIECE 8192
#define OUT_MAX 65536
#define TOPIC_MAX 1024

static uint8_t in[PIECE];
static uint8_t out[OUT_MAX];
static uint32_t every = 2;

CSP_HANDLER(.outputs = 1, .new_len_max = TOPIC_MAX + OUT_MAX, .buffer = in, .buffer_len = PIECE)

CSP_EXPORT(configure) int32_t configure(uint32_t len)
{
    static const char why[] = "the parameter is the number of samples of which one is made, 1 to 64";
    char text[2];
    uint32_t number = 0;
    uint32_t count = csp_parameters(0, sizeof text, text);
    for (uint32_t i = 0; i < count; i++)
        number = text[i] >= '0' && text[i] <= '9' ? number * 10 + (uint32_t)(text[i] - '0') : 1000;
    if (len > sizeof text || (len > 0 && (number < 1 || number > 64))) {
        csp_refuse(why, sizeof why - 1);
        return 2;
    }
    every = len > 0 ? number : 2;
    return CSP_OK;
}

CSP_EXPORT(on_message) int32_t on_message(uint32_t format, uint32_t len, uint32_t frames)
{
    int32_t sum = 0;
    uint32_t count = 0, made = 0;
    uint32_t topic = frames > 1 ? (uint32_t)csp_frame_len(0) : 0;
    if (topic > TOPIC_MAX)
        return 2;
    for (uint32_t at = topic; at + 1 < len;) {
        const uint8_t *from = len <= PIECE ? in + topic : in;
        uint32_t have = len <= PIECE ? len - topic : csp_read(at, PIECE, in);
        if (have < 2)
            break;
        for (uint32_t i = 0; i + 1 < have; i += 2, at += 2) {
            sum += (int16_t)(from[i] | from[i + 1] << 8);
            if (++count < every && at + 3 < len)
                continue;
            if (made == OUT_MAX)
                return 2;
            int32_t mean = sum / (int32_t)count;
            out[made++] = (uint8_t)mean;
            out[made++] = (uint8_t)(mean >> 8);
            sum = 0;
            count = 0;
        }
    }
    if (frames == 1)
        return csp_emit(0, format, out, made);
    const uint32_t lens[] = {topic, made};
    const struct csp_piece pieces[] = {{1, 0, topic}, {0, (uint32_t)out, made}};
    return csp_emit_new(0, format, lens, 2, pieces, 2);
}
