variable "cluster" {
  description = "Name of the EKS cluster"
  type        = string
}

variable "region" {
  description = "Region of the cluster"
  type        = string
}

variable "account" {
  description = "Account of the cluster"
  type        = string
}

variable "name" {
  description = "Name of the node group"
  type        = string
}

variable "node_role_arn" {
  description = "IAM role of the nodes"
  type        = string
}

variable "subnet_id" {
  description = "Subnet of the nodes, in one zone"
  type        = string
}

variable "instance_type" {
  description = "A type of kubectl gpu explain --template: one that Mica knows before there is a node"
  type        = string
  default     = "g6.xlarge"
}

variable "capacity_type" {
  description = "ON_DEMAND, SPOT or CAPACITY_BLOCK"
  type        = string
  default     = "ON_DEMAND"

  validation {
    condition     = contains(["ON_DEMAND", "SPOT", "CAPACITY_BLOCK"], var.capacity_type)
    error_message = "capacity_type is ON_DEMAND, SPOT or CAPACITY_BLOCK."
  }
}

variable "capacity_reservation_id" {
  description = "ID of a Capacity Block; empty for none"
  type        = string
  default     = ""
}

variable "max_size" {
  description = "Most nodes that the group may have"
  type        = number
  default     = 4
}
