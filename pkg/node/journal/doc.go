// Package journal remembers prepared claims, in one small JSON file per claim. A file is
// written atomically: a crash leaves the old record, the new record or none.
//
// It never touches a GPU or a CDI file, never asks the API server, and never stops the
// plugin. A file that cannot be decoded is reported, and its claim counts as unknown. A
// file that a newer version wrote stays.
//
// Several processes may use one directory, as the plugin pods of a rolling update do.
// Whoever writes a claim's record holds the claim's lock (package lock).
//
// After a rollback, the plugin finds records of the newer version and must not give their
// GPUs to other claims. So every later schema keeps this:
//
//   - The file begins with {"schemaVersion":N, has an object "record", and "crc32c", the
//     Castagnoli checksum of the bytes of "record".
//   - The record has "namespace", "name", "bootID" and "devices".
//   - A device has "device", the "uuid" of its GPU, and "adminAccess" if the claim only
//     looks at it.
//   - A device that is a part of one GPU has "form" with "placement" with "start" and
//     "size", in memory slices. A device without it has the entire GPU.
//
// What cannot be read holds more, never less: the entire GPU, or every GPU of the node.
// A field that an older version may lose when it writes the record again needs no new
// schemaVersion. Every other change does.
package journal
