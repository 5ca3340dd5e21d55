// Package journal owns what the plugin remembers of the claims that it prepared:
// one small JSON file a claim, written atomically, so that a crash at any point
// leaves the old record, the new record or none.
//
// It never touches a GPU or a CDI file, never asks the API server, and never
// stops the plugin: a file that cannot be understood is reported, and the claim is
// then treated as one never seen; one that a newer version wrote stays, for that
// version. It serialises its own types only, because a checksum over a foreign
// struct breaks with that struct's next field.
//
// Several goroutines and several processes may use one directory at a time, as
// the plugin pods of a rolling update do. Writers of one and the same claim hold
// that claim's lock (package lock).
//
// A version of the plugin that was taken back finds records of the version that it
// replaced, and must not give their GPUs to other claims. So every later schema keeps this:
//
//   - The file is a JSON object with the number "schemaVersion", the object "record", and
//     "crc32c", the Castagnoli checksum of the bytes of "record".
//   - The record has "namespace", "name", "bootID" and "devices".
//   - A device has "device", the "uuid" of its GPU, and "adminAccess", which is true if the
//     claim only looks at it.
//   - A device that is a part of one GPU has "partition" with "start" and "size", in memory
//     slices. One without it has the entire GPU.
//
// What does not read so holds more, never less: the entire GPU, or every GPU of the node.
package journal
