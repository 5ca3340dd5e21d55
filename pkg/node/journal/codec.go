package journal

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
)

const schema = 1

// maxFileSize bounds what is read into memory. A claim has at most 32 results; a record of
// that many devices takes some 15 KiB.
const maxFileSize = 64 << 10

const extension = ".json"

// envelope is the content of a file. The checksum is over the bytes of the record as they
// are in the file.
type envelope struct {
	SchemaVersion int             `json:"schemaVersion"`
	CRC32C        string          `json:"crc32c"`
	Record        json.RawMessage `json:"record"`
}

// Corrupt is the error of a file that cannot be used. Its claim counts as unknown, unless a
// newer version wrote the file: that version needs it.
type Corrupt struct {
	ClaimUID string // from the file's name; empty if that is no UID
	Path     string
	Detail   string // the end of a sentence whose subject is the file
	Newer    bool   // written by a newer version: sound, and left alone
	Known    bool   // List has reported it before
	// Record has the fields of a newer version's record that every version keeps.
	Record Record
}

// Error says what was found and what happens now.
func (c *Corrupt) Error() string {
	text := fmt.Sprintf("the journal file %s %s; ", c.Path, c.Detail)
	switch {
	case c.Newer:
		return text + "it and its claim are left alone: install that version again, or remove the file if nothing of the claim is left, as after a reboot; until then no other claim gets its devices"
	case c.ClaimUID == "":
		return text + "it is not used"
	}
	return text + fmt.Sprintf("it is not used, and claim %s will be prepared again from what is found on the node", c.ClaimUID)
}

// Encode returns the content of the record's file, also for a copy elsewhere.
func Encode(r Record) ([]byte, error) {
	if err := validate(r); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(envelope{schema, checksum(body), body})
	if err != nil {
		return nil, err
	}
	if data = append(data, '\n'); len(data) > maxFileSize {
		return nil, fmt.Errorf("the record takes %d bytes and at most %d are allowed", len(data), maxFileSize)
	}
	return data, nil
}

// Decode reads what Encode wrote. The error is a *Corrupt without a path.
func Decode(uid string, data []byte) (Record, error) {
	if !validUID(uid) {
		return Record{}, corruptf("", "has the name of no claim: a claim's UID and %q were expected", extension)
	}
	if len(data) == 0 {
		return Record{}, corruptf(uid, "is empty")
	}
	// The version first: a newer one may have another envelope, and other limits.
	if version, newer := newerSchema(data); newer {
		err := corruptf(uid, "was written by a newer version of the plugin (schema version %s, this one knows up to %d)", version, schema)
		err.Newer, err.Record = true, newerRecord(uid, data)
		return Record{}, err
	}
	if len(data) > maxFileSize {
		return Record{}, corruptf(uid, "is larger than %d bytes", maxFileSize)
	}
	var file envelope
	switch err := json.Unmarshal(data, &file); {
	case err != nil && strings.HasSuffix(err.Error(), "unexpected end of JSON input"):
		return Record{}, corruptf(uid, "ends after %d bytes in the middle of its content", len(data))
	case err != nil:
		return Record{}, corruptf(uid, "is not a record: %w", err)
	case file.SchemaVersion != schema:
		return Record{}, corruptf(uid, "has no schema version")
	}
	if actual := checksum(file.Record); file.CRC32C != actual {
		return Record{}, corruptf(uid, "has been damaged: its checksum is %s, but %q is written", actual, file.CRC32C)
	}
	var record Record
	err := json.Unmarshal(file.Record, &record)
	if err == nil {
		err = validate(record)
	}
	if err == nil && record.ClaimUID != uid {
		err = fmt.Errorf("it is the record of claim %q", record.ClaimUID)
	}
	if err != nil {
		return Record{}, corruptf(uid, "has an intact checksum and an impossible content: %w", err)
	}
	return record, nil
}

func corruptf(uid, format string, args ...any) *Corrupt {
	return &Corrupt{ClaimUID: uid, Detail: fmt.Errorf(format, args...).Error()}
}

var schemaVersion = regexp.MustCompile(`^\s*\{\s*"schemaVersion"\s*:\s*([0-9]+)`)

// newerSchema reports whether a later schema wrote the file, also if it ends too soon.
func newerSchema(data []byte) (version string, newer bool) {
	found := schemaVersion.FindSubmatch(data)
	if found == nil {
		return "", false
	}
	version = strings.TrimLeft(string(found[1]), "0")
	return version, version > "1" || len(version) > 1
}

// newerRecord reads the fields that every version keeps. A device without UUID stands for
// all GPUs of the node, and a record without boot ID for one of this boot.
func newerRecord(uid string, data []byte) Record {
	var file envelope
	var kept struct {
		Namespace, Name, BootID string
		Devices                 []json.RawMessage
	}
	// A field of another type is skipped; the others are still read.
	if _ = json.Unmarshal(data, &file); file.CRC32C == checksum(file.Record) {
		_ = json.Unmarshal(file.Record, &kept)
	}
	record := Record{ClaimUID: uid, Namespace: kept.Namespace, Name: kept.Name, BootID: kept.BootID}
	for _, device := range kept.Devices {
		record.Devices = append(record.Devices, newerDevice(device))
	}
	if len(record.Devices) == 0 {
		record.Devices = []Device{{Newer: true}}
	}
	return record
}

// newerDevice has the entire GPU if anything of its place cannot be read.
func newerDevice(data []byte) Device {
	var kept struct {
		Device, UUID string
		AdminAccess  bool
		Form         json.RawMessage
	}
	var form struct {
		Placement struct{ Start, Size int }
	}
	_ = json.Unmarshal(data, &kept)
	device := Device{Newer: true, Device: kept.Device, UUID: kept.UUID, AdminAccess: kept.AdminAccess}
	if kept.UUID != "" && json.Unmarshal(kept.Form, &form) == nil && form.Placement.Start >= 0 && form.Placement.Size > 0 {
		device.Form.Placement = gpu.Placement{Start: form.Placement.Start, Size: form.Placement.Size}
	}
	return device
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(record []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(record, castagnoli))
}

func validate(r Record) error {
	if !validUID(r.ClaimUID) {
		return fmt.Errorf("%q is not the UID of a claim", r.ClaimUID)
	}
	if r.State != Intent && r.State != Prepared {
		return fmt.Errorf("the state %q is neither %q nor %q", r.State, Intent, Prepared)
	}
	for _, d := range r.Devices {
		if d.Form.Base == "" {
			return fmt.Errorf("device %q has no shape", d.Device)
		}
	}
	return nil
}

// validUID accepts what Kubernetes or a test uses as a UID, and nothing that has a meaning
// in a path.
func validUID(uid string) bool {
	return len(uid) <= 64 && uidPattern.MatchString(uid)
}

var uidPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]*$`)
