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
package journal
