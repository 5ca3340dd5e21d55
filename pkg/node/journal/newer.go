package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// newerRecord is what the record of a newer version says in the fields that every version
// keeps. A device without UUID stands for all GPUs of the node, and a record without boot ID
// for one of this boot.
func newerRecord(uid string, data []byte) Record {
	record := Record{ClaimUID: uid}
	var envelope, kept map[string]json.RawMessage
	var sum string
	var devices []json.RawMessage
	if readInto(data, &envelope) && readInto(envelope["crc32c"], &sum) && sum == checksum(envelope["record"]) && readInto(envelope["record"], &kept) {
		for name, field := range map[string]*string{"namespace": &record.Namespace, "name": &record.Name, "bootID": &record.BootID} {
			readInto(kept[name], field)
		}
		readInto(kept["devices"], &devices)
	}
	for _, device := range devices {
		record.Devices = append(record.Devices, newerDevice(device))
	}
	if len(devices) == 0 {
		record.Devices = []Device{{Newer: true}}
	}
	return record
}

func newerDevice(data []byte) Device {
	var kept map[string]json.RawMessage
	device := Device{Newer: true}
	readInto(data, &kept)
	readInto(kept["device"], &device.Device)
	readInto(kept["adminAccess"], &device.AdminAccess)
	if readInto(kept["uuid"], &device.UUID) && device.UUID != "" {
		device.Partition = newerPlace(kept["partition"])
	}
	return device
}

// newerPlace is zero, which is an entire GPU, for anything but a place.
func newerPlace(data []byte) (place Partition) {
	var kept map[string]json.RawMessage
	if !readInto(data, &kept) || !readInto(kept["size"], &place.Size) || place.Size < 1 {
		return Partition{}
	}
	// An empty field is left out of the file: without a start, it is the first memory slice.
	if start, present := kept["start"]; present && (!readInto(start, &place.Start) || place.Start < 0) {
		return Partition{}
	}
	return place
}

// schemaIn is the schema version of a file, also of one that ends in the middle of its
// content; 0 for none.
func schemaIn(data []byte) (version int) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if opening, err := decoder.Token(); err != nil || opening != json.Delim('{') {
		return 0
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return 0
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return 0
		}
		if name == "schemaVersion" {
			readInto(value, &version)
			return version
		}
	}
	return 0
}

// readInto reports whether the data is of that type. If it is not, the value stays zero.
func readInto[T any](data json.RawMessage, into *T) bool {
	var value T
	if json.Unmarshal(data, &value) != nil {
		return false
	}
	*into = value
	return true
}

func checksum(record []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(record, castagnoli))
}
