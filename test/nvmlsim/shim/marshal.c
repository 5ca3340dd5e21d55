#include "sim.h"

#include <string.h>

/* A cursor that never moves past its end; once short, it stays short. */
struct cursor {
	uint8_t *at, *end;
	bool short_of;
};

static bool take(struct cursor *c, size_t size)
{
	if (c->short_of || (size_t)(c->end - c->at) < size)
		c->short_of = true;
	return !c->short_of;
}

static void put(struct cursor *c, const void *from, size_t size)
{
	if (size == 0 || !take(c, size))
		return;
	memcpy(c->at, from, size);
	c->at += size;
}

static void put_u8(struct cursor *c, uint8_t n)
{
	put(c, &n, sizeof n);
}

static void put_u32(struct cursor *c, uint32_t n)
{
	put(c, &n, sizeof n);
}

static uint32_t get_u32(struct cursor *c)
{
	uint32_t n = 0;

	if (take(c, sizeof n)) {
		memcpy(&n, c->at, sizeof n);
		c->at += sizeof n;
	}
	return n;
}

static void *pointer(uint64_t value)
{
	return (void *)(uintptr_t)value;
}

static bool is_memory(const struct arg *a)
{
	return a->kind >= ARG_IN;
}

static bool is_written(const struct arg *a)
{
	return a->kind >= ARG_OUT;
}

/* The value of the argument that counts the elements of array argument a. */
static uint32_t counted(const struct function *f, const uint64_t *v, const struct arg *a)
{
	const struct arg *count;
	uint32_t n;

	count = &f->args[a->count - 1];
	if (!is_memory(count))
		return (uint32_t)v[a->count - 1];
	if (v[a->count - 1] == 0)
		return 0;
	memcpy(&n, pointer(v[a->count - 1]), sizeof n);
	return n;
}

/*
 * The number of elements behind a pointer argument. Of an array to write, a
 * caller may offer more than a frame can fill.
 */
static uint64_t elements(const struct function *f, const uint64_t *v, const struct arg *a)
{
	uint64_t n, most = MAX_ROOM / a->size;

	if (a->count == COUNT_ONE)
		return 1;
	if (a->count == COUNT_ANY)
		return most;
	n = counted(f, v, a);
	return a->kind == ARG_OUT && n > most ? most : n;
}

/*
 * The bytes behind a pointer argument. A caller that was built against another
 * version of a versioned struct says so in the first word, whose low 24 bits
 * are the struct's size: nothing past that size is touched. A size that the
 * shim does not know makes it pass the word alone, which the daemon refuses.
 *
 * A tailed struct has no size in it, and its array is longer in newer headers:
 * nothing past the elements that its second word counts is touched.
 */
static uint64_t extent(const struct function *f, const uint64_t *v, int i)
{
	const struct arg *a = &f->args[i];
	uint32_t word, head;

	if (a->kind == ARG_TAILED) {
		head = a->size % a->count; /* it is shorter than an element */
		memcpy(&word, (uint8_t *)pointer(v[i]) + sizeof word, sizeof word);
		return word > a->size / a->count ? head : head + word * a->count;
	}
	if (a->kind != ARG_VERSIONED)
		return a->size * elements(f, v, a);
	memcpy(&word, pointer(v[i]), sizeof word);
	if ((word & 0xffffff) < sizeof word || (word & 0xffffff) > a->size)
		return sizeof word;
	return word & 0xffffff;
}

static void put_memory(struct cursor *c, const struct function *f, const uint64_t *v, int i)
{
	uint64_t size;

	put_u8(c, v[i] != 0);
	if (v[i] == 0)
		return;
	size = extent(f, v, i);
	if (size > MAX_FRAME) {
		c->short_of = true;
		return;
	}
	put_u32(c, (uint32_t)size);
	if (f->args[i].kind != ARG_OUT)
		put(c, pointer(v[i]), size);
}

static void put_string(struct cursor *c, const char *s)
{
	size_t size = s ? strnlen(s, MAX_FRAME) : 0;

	put_u8(c, s != NULL);
	if (!s)
		return;
	put_u32(c, (uint32_t)size);
	put(c, s, size);
}

size_t sim_encode(const struct function *f, const uint64_t *v, uint8_t *frame)
{
	struct cursor c = {frame, frame + MAX_FRAME, false};
	uint32_t n32;
	int i;

	put_u8(&c, (uint8_t)strlen(f->name));
	put(&c, f->name, strlen(f->name));
	put_u8(&c, f->nargs);
	for (i = 0; i < f->nargs; i++) {
		put_u8(&c, f->args[i].kind);
		switch (f->args[i].kind) {
		case ARG_HANDLE:
		case ARG_U64:
			put(&c, &v[i], sizeof v[i]);
			break;
		case ARG_U32:
			n32 = (uint32_t)v[i];
			put_u32(&c, n32);
			break;
		case ARG_STRING:
			put_string(&c, pointer(v[i]));
			break;
		default:
			put_memory(&c, f, v, i);
		}
	}
	return c.short_of ? 0 : (size_t)(c.at - frame);
}

bool sim_decode(const struct function *f, const uint64_t *v,
		const uint8_t *frame, size_t size, int *result)
{
	struct cursor c = {(uint8_t *)(uintptr_t)frame, (uint8_t *)(uintptr_t)frame + size, false};
	uint64_t room[MAX_ARGS] = {0};
	uint32_t written;
	int i;

	*result = (int)get_u32(&c);
	/* The room is measured before a reply overwrites a count or a version. */
	for (i = 0; i < f->nargs; i++)
		if (is_written(&f->args[i]) && v[i] != 0)
			room[i] = extent(f, v, i);
	for (i = 0; i < f->nargs; i++) {
		if (!is_written(&f->args[i]) || v[i] == 0)
			continue;
		written = get_u32(&c);
		if (!take(&c, written) || written > room[i])
			return false;
		memcpy(pointer(v[i]), c.at, written);
		c.at += written;
	}
	return !c.short_of && c.at == c.end;
}
