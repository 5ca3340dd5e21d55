package scaleout

import "slices"

// chunk is how many values of a vector are copied when one changes.
const chunk = 64

// vector is an immutable list: with returns another, which shares all chunks but one. The zero vector is empty.
type vector[T any] struct {
	chunks []*[chunk]T
	len    int
}

// at is the value at i; zero if none was set.
func (v vector[T]) at(i int) T {
	if i >= v.len || v.chunks[i/chunk] == nil {
		var none T
		return none
	}
	return v.chunks[i/chunk][i%chunk]
}

// with is the vector with a value at i, which may be beyond its end.
func (v vector[T]) with(i int, value T) vector[T] {
	chunks := make([]*[chunk]T, max(len(v.chunks), i/chunk+1))
	copy(chunks, v.chunks)
	var changed [chunk]T
	if known := chunks[i/chunk]; known != nil {
		changed = *known
	}
	changed[i%chunk] = value
	chunks[i/chunk] = &changed
	return vector[T]{chunks: chunks, len: max(v.len, i+1)}
}

func (v vector[T]) append(value T) vector[T] { return v.with(v.len, value) }

// vectorOf has the values of a list.
func vectorOf[T any](list []T) vector[T] {
	v := vector[T]{len: len(list)}
	for part := range slices.Chunk(list, chunk) {
		var filled [chunk]T
		copy(filled[:], part)
		v.chunks = append(v.chunks, &filled)
	}
	return v
}

func (v vector[T]) list() []T {
	all := make([]T, 0, v.len)
	for i := range v.len {
		all = append(all, v.at(i))
	}
	return all
}
