# A managed node group for Mica in an EKS cluster that exists. `max_size` of it bounds what Mica asks for.

resource "aws_eks_node_group" "gpu" {
  cluster_name    = var.cluster
  node_group_name = var.name
  node_role_arn   = var.node_role_arn
  # One zone and one instance type: Mica counts all nodes of a group as alike.
  subnet_ids = [var.subnet_id]
  # Or the launch template has it.
  instance_types = var.capacity_reservation_id == "" ? [var.instance_type] : null
  capacity_type  = var.capacity_type
  ami_type       = "AL2023_x86_64_NVIDIA"

  scaling_config {
    min_size     = 0
    desired_size = 0
    max_size     = var.max_size
  }

  labels = {
    # On the group too, although the AMI sets it: Cluster Autoscaler counts DaemonSets by it before there is a node.
    "nvidia.com/gpu.present" = "true"
  }

  taint {
    key    = "nvidia.com/gpu"
    value  = "true"
    effect = "NO_SCHEDULE"
  }

  # Mica removes it once the node has published its GPUs. With a value: Cluster Autoscaler overlooks
  # taints of groups that have none.
  taint {
    key    = "startup-taint.cluster-autoscaler.kubernetes.io/mica"
    value  = "starting"
    effect = "NO_SCHEDULE"
  }

  dynamic "launch_template" {
    for_each = var.capacity_reservation_id == "" ? [] : [aws_launch_template.block[0]]
    content {
      id      = launch_template.value.id
      version = launch_template.value.latest_version
    }
  }

  lifecycle {
    # Cluster Autoscaler and Mica set it.
    ignore_changes = [scaling_config[0].desired_size]
  }
}

# A Capacity Block is named by a launch template, which then names the instance type as well.
resource "aws_launch_template" "block" {
  count         = var.capacity_reservation_id == "" ? 0 : 1
  name_prefix   = "${var.name}-"
  instance_type = var.instance_type

  instance_market_options {
    market_type = "capacity-block"
  }

  capacity_reservation_specification {
    capacity_reservation_target {
      capacity_reservation_id = var.capacity_reservation_id
    }
  }
}

# Cluster Autoscaler finds the group by its tags, which EKS does not hand on to the scaling group.
resource "aws_autoscaling_group_tag" "autoscaler" {
  for_each = {
    "k8s.io/cluster-autoscaler/enabled"        = "true"
    "k8s.io/cluster-autoscaler/${var.cluster}" = "owned"
  }
  autoscaling_group_name = aws_eks_node_group.gpu.resources[0].autoscaling_groups[0].name

  tag {
    key                 = each.key
    value               = each.value
    propagate_at_launch = false
  }
}

# What the controller may ask AWS: ../../iam has the policies for what it may do.
resource "aws_iam_policy" "discover" {
  name   = "${var.cluster}-mica-discover"
  policy = replace(replace(replace(file("${path.module}/../../iam/discover.json"), "REGION", var.region), "ACCOUNT", var.account), "CLUSTER", var.cluster)
}

resource "aws_eks_pod_identity_association" "controller" {
  cluster_name    = var.cluster
  namespace       = "mica"
  service_account = "mica-controller"
  role_arn        = aws_iam_role.controller.arn
}

resource "aws_iam_role" "controller" {
  name = "${var.cluster}-mica-controller"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
    }]
  })
}

resource "aws_iam_role_policy_attachment" "controller" {
  role       = aws_iam_role.controller.name
  policy_arn = aws_iam_policy.discover.arn
}
